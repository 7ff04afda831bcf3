<?php
namespace Pages;

final class Received implements \Page
{
    public function answer(\Request $request): \Response
    {
        $values = ['title' => 'Received', 'who' => $request->form['who'] ?? '', 'digest' => \Upload::digest($request->files['file'] ?? ['error' => UPLOAD_ERR_NO_FILE])];
        return new \Response(\View::render('received', $values), 201);
    }
}
