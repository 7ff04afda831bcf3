<?php
namespace Pages;

final class Form implements \Page
{
    public function answer(\Request $request): \Response
    {
        return new \Response(\View::render('form', ['title' => 'Form']));
    }
}
